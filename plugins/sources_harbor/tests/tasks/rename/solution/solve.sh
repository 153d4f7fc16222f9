#!/bin/bash
cd "$NOTES"
for file in *.text; do mv "$file" "${file%.text}.md"; done
