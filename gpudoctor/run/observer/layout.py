"""How a rank's record file is laid out: written by the observer in the rank, read by gpudoctor beside it.

One file a process, mapped into memory: what was written is there even if the process is killed. All numbers are
little-endian. Times are of CLOCK_MONOTONIC, which all processes of a node share.
"""

from __future__ import annotations

import struct

MAGIC = b"gpudoctor.rank/1"
SUFFIX = ".rank"

# what the main thread can be doing; which of them are a rank's own time: OWN of run/step_series.py
PHASES = ("data", "forward", "backward", "optimizer", "wait", "between", "host")
DATA, FORWARD, BACKWARD, OPTIMIZER, WAIT, BETWEEN, HOST = range(len(PHASES))

# magic, pid, start time of the process (clock ticks since boot), signal that makes it write its stacks
IDENTITY = struct.Struct("<16sqqq")
IDENTITY_AT = 0
# rank, local rank, world size (-1: not known yet), device (0 CPU, 1 GPU), GPU ordinal
PLACE = struct.Struct("<qqqqq")
PLACE_AT = 64
# steps finished, marks made, phase now, since (ns); of a step that is not timed the thread beside it writes SAMPLED
NOW = struct.Struct("<qqqq")
NOW_AT = 128
# how Python ended, and when (ns)
ENDED, ENDED_AT = struct.Struct("<qq"), 168
# name of the collective that it waits in now
COLLECTIVE_AT, COLLECTIVE_BYTES = 192, 64
END_OF_BACKWARD = "all-reduce of the gradients (end of backward)"
# steps kept so far; the first steps (plus 1; 0: none) with a loss, and with gradients, that are not finite
KEPT, KEPT_AT = struct.Struct("<qqq"), 272
# phase, and when it was seen to move (ns)
SAMPLED, SAMPLED_AT = struct.Struct("<qq"), 304
# bytes of output kept so far
OUTPUT_TOTAL, OUTPUT_TOTAL_AT = struct.Struct("<q"), 256

# one step: number, end (ns); of each phase in ms: wall time, CPU time of the training thread, and how long that thread
# was ready to run without a CPU; rows and elements of the first input, forwards, loss finite (1, 0; -1 not looked at),
# gradients finite (same), memory (MiB)
STEP = struct.Struct("<30d")  # the last one is spare
STEPS_AT = 4096
STEPS_KEPT = 4096

OUTPUT_HEAD_AT = STEPS_AT + STEPS_KEPT * STEP.size
OUTPUT_HEAD_BYTES = 64 << 10
OUTPUT_RING_AT = OUTPUT_HEAD_AT + OUTPUT_HEAD_BYTES
OUTPUT_RING_BYTES = 448 << 10
FILE_BYTES = OUTPUT_RING_AT + OUTPUT_RING_BYTES
