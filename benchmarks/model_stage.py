"""A model stage of a run beside a plain loop over the same fragments, and how much its actor is busy.

  python -m benchmarks.model_stage --documents 20000 --width 128

A transformers encoder with random weights scores JSONL texts on one actor of one thread. The peer is the same encoder
in this process, over the same texts in the same fragments and batches, and nothing else. Told are documents a second of
both (the stage's from the first to the last file of scores), the share of that time in which the actor was scoring,
how much of the reading it overlapped, and the bytes that the object store held at most.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.texts import words_of
