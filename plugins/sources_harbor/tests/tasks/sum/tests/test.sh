#!/bin/bash
if grep -qx 42 /app/sum.txt 2>/dev/null; then echo 1.0; else echo 0.0; fi > /logs/verifier/reward.txt
