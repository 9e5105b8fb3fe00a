#!/bin/sh
# 0: no problem, 1: a problem, 2: not known. node-problem-detector shows the first 80 characters.
verdict=${1:-/run/gpudoctor/verdict}
if [ ! -r "$verdict" ]; then
  echo "UNKNOWN gpudoctor has left no result on this node"
  exit 2
fi
if [ -z "$(find "$verdict" -mmin -25)" ]; then
  echo "UNKNOWN the last result of gpudoctor is older than 25 minutes"
  exit 2
fi
IFS= read -r line <"$verdict"
words=${line#GPUDOCTOR * - }
printf '%.80s\n' "${words%% | *}"
case $line in
  "GPUDOCTOR OK - "* | "GPUDOCTOR WARNING - "*) exit 0 ;;
  "GPUDOCTOR CRITICAL - "*) exit 1 ;;
  *) exit 2 ;;
esac
