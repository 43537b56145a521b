"""Timings are ratios measured in one run, interleaved; the plain version stands beside ours."""
