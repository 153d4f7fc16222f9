import unittest

from agenda.texts import duration, roman, wrapped


class TextsTest(unittest.TestCase):
    def test_roman(self):
        self.assertEqual(roman(1994), "MCMXCIV")

    def test_duration(self):
        self.assertEqual(duration(3900), "1 h 5 min")
        self.assertEqual(duration(0), "0 s")

    def test_wrapped(self):
        self.assertEqual(wrapped("one two three", 7), ["one two", "three"])
