import unittest

from agenda.money import change, discounted, split


class MoneyTest(unittest.TestCase):
    def test_split(self):
        self.assertEqual(split(100, 3), [34, 33, 33])

    def test_discounted(self):
        self.assertEqual(discounted(1000, 25), 750)
        self.assertEqual(discounted(999, 50), 500)

    def test_change(self):
        self.assertEqual(change(30, [1, 10, 25]), [10, 10, 10])
        self.assertIsNone(change(3, [5]))
