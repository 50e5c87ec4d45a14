"""The parts of timelines: bars, events, comparisons and critical paths."""
