#!/bin/bash
echo pong > /app/ping.txt
cd /app && nohup python3 -m http.server 8000 --bind 127.0.0.1 > /dev/null 2>&1 &
