#!/bin/bash
paste -sd+ numbers.txt | bc > sum.txt 2>/dev/null || awk '{ total += $1 } END { print total }' numbers.txt > sum.txt
