#!/bin/bash
python3 - <<'END' > /logs/verifier/reward.txt
import time, urllib.request
answer = ""
for _ in range(20):
    try:
        answer = urllib.request.urlopen("http://127.0.0.1:8000/ping.txt", timeout=2).read().decode().strip()
        break
    except OSError:
        time.sleep(0.1)
print(float(answer == "pong"))
END
