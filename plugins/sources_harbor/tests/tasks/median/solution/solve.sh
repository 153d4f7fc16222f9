#!/bin/bash
cat > /app/median.py <<'END'
import statistics
import sys

print(statistics.median(float(argument) for argument in sys.argv[1:]))
END
