"""Texts for people."""

_NUMERALS = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]


def roman(number):
    """Return a number from 1 to 3999 in Roman numerals."""
    if not 1 <= number <= 3999:
        raise ValueError("Roman numerals are from 1 to 3999")
    text = ""
    for value, numeral in _NUMERALS:
        while number >= value:
            text += numeral
            number -= value
    return text


def duration(seconds):
    """Return seconds as hours, minutes and seconds, such as "1 h 5 min"."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    said = [f"{number} {unit}" for number, unit in parts if number > 0]
    return " ".join(said) or "0 s"


def wrapped(text, width):
    """Break a text into lines of at most so many characters; longer words get their own."""
    lines = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines
