#!/bin/bash
renamed=0
for name in a b; do
  if [ -f "/app/notes/$name.md" ] && [ ! -e "/app/notes/$name.text" ]; then renamed=$((renamed + 1)); fi
done
kept=0
if [ "$(cat /app/notes/c.list 2>/dev/null)" = "three" ]; then kept=1; fi
echo "{\"reward\": $(awk "BEGIN { print $renamed / 2 * $kept }"), \"renamed\": $renamed, \"kept\": $kept}" \
  > /logs/verifier/reward.json
