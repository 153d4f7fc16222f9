"""The time and money that a run spends, and when it is likely to be done."""
