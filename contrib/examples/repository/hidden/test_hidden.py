import unittest

from agenda.intervals import first_slot, gaps, merge, overlap
from agenda.money import change, discounted, split
from agenda.texts import duration, roman, wrapped


class HiddenTest(unittest.TestCase):
    def test_overlap(self):
        for one, other, expected in [
            ((0, 10), (3, 5), 2),
            ((3, 5), (0, 10), 2),
            ((0, 3), (3, 5), 0),
            ((0, 4), (3, 5), 1),
            ((7, 9), (1, 2), 0),
        ]:
            self.assertEqual(overlap(one, other), expected)

    def test_merge(self):
        self.assertEqual(merge([]), [])
        self.assertEqual(merge([(3, 4), (1, 3)]), [(1, 4)])
        self.assertEqual(merge([(1, 9), (2, 3)]), [(1, 9)])
        self.assertEqual(merge([(1, 2), (4, 5), (3, 6)]), [(1, 2), (3, 6)])

    def test_gaps(self):
        self.assertEqual(gaps([], 1, 3), [(1, 3)])
        self.assertEqual(gaps([(0, 9)], 1, 3), [])
        self.assertEqual(gaps([(0, 2), (5, 6)], 1, 4), [(2, 4)])
        self.assertEqual(gaps([(8, 9)], 1, 3), [(1, 3)])
        self.assertEqual(gaps([(1, 2)], 1, 3), [(2, 3)])

    def test_first_slot(self):
        self.assertEqual(first_slot([(1, 2), (3, 9)], 1, 0, 9), 0)
        self.assertEqual(first_slot([(0, 2), (3, 9)], 1, 0, 9), 2)
        self.assertIsNone(first_slot([(0, 2), (3, 9)], 2, 0, 9))

    def test_split(self):
        for total in range(30):
            for people in range(1, 7):
                shares = split(total, people)
                self.assertEqual(sum(shares), total)
                self.assertEqual(len(shares), people)
                self.assertEqual(shares, sorted(shares, reverse=True))
                self.assertLessEqual(shares[0] - shares[-1], 1)
        with self.assertRaises(ValueError):
            split(5, 0)

    def test_discounted(self):
        self.assertEqual(
            [discounted(1, percent) for percent in (0, 49, 50, 51, 100)], [1, 1, 1, 0, 0]
        )
        self.assertEqual(discounted(12345, 10), 11111)
        for percent in (-1, 101):
            with self.assertRaises(ValueError):
                discounted(1, percent)

    def test_change(self):
        self.assertEqual(change(0, [2]), [])
        self.assertEqual(change(63, [1, 5, 10, 21, 25]), [21, 21, 21])
        self.assertEqual(change(7, [2, 5]), [5, 2])
        self.assertIsNone(change(1, [2, 5]))

    def test_roman(self):
        self.assertEqual(
            [roman(n) for n in (1, 4, 9, 40, 90, 400, 900, 3999)],
            ["I", "IV", "IX", "XL", "XC", "CD", "CM", "MMMCMXCIX"],
        )
        for number in (0, 4000):
            with self.assertRaises(ValueError):
                roman(number)

    def test_duration(self):
        self.assertEqual([duration(n) for n in (59, 60, 61)], ["59 s", "1 min", "1 min 1 s"])
        self.assertEqual([duration(n) for n in (3600, 7325)], ["1 h", "2 h 2 min 5 s"])

    def test_wrapped(self):
        self.assertEqual(wrapped("", 5), [])
        self.assertEqual(wrapped("aa bb", 5), ["aa bb"])
        self.assertEqual(wrapped("aa bb", 4), ["aa", "bb"])
        self.assertEqual(wrapped("longer than", 3), ["longer", "than"])
