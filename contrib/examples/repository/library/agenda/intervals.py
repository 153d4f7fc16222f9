"""Intervals of time, as pairs of a start and an end; the end is not part of them."""


def overlap(one, other):
    """Return how long two intervals overlap; 0 if they do not."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def merge(intervals):
    """Join intervals that overlap or touch, and sort them."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def gaps(intervals, start, end):
    """Return the free intervals from a start to an end."""
    free, at = [], start
    for first, last in merge(intervals):
        if first > at and at < end:
            free.append((at, min(first, end)))
        at = max(at, last)
    if at < end:
        free.append((at, end))
    return free


def first_slot(intervals, length, start, end):
    """Return the earliest start of a free interval of a length, or None."""
    for first, last in gaps(intervals, start, end):
        if last - first >= length:
            return first
    return None
