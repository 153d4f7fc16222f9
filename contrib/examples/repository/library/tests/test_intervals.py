import unittest

from agenda.intervals import first_slot, gaps, merge, overlap


class IntervalsTest(unittest.TestCase):
    def test_overlap(self):
        self.assertEqual(overlap((1, 4), (2, 6)), 2)
        self.assertEqual(overlap((1, 2), (5, 6)), 0)

    def test_merge(self):
        self.assertEqual(merge([(5, 7), (1, 3), (2, 4)]), [(1, 4), (5, 7)])

    def test_gaps(self):
        self.assertEqual(gaps([(9, 10), (12, 13)], 8, 14), [(8, 9), (10, 12), (13, 14)])

    def test_first_slot(self):
        self.assertEqual(first_slot([(9, 10)], 2, 8, 14), 10)
        self.assertIsNone(first_slot([(8, 14)], 1, 8, 14))
