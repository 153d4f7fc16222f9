"""Amounts of money in cents."""


def split(total, people):
    """Divide cents among people; the first ones get what is left, one cent each."""
    if people < 1:
        raise ValueError("there has to be somebody to pay")
    share, left = divmod(total, people)
    return [share + 1] * left + [share] * (people - left)


def discounted(total, percent):
    """Return a total less a discount, rounded half up to cents."""
    if not 0 <= percent <= 100:
        raise ValueError("a discount is from 0 to 100 percent")
    return (total * (100 - percent) * 2 + 100) // 200


def change(amount, coins):
    """Return the fewest coins that make an amount, largest first; None if none do."""
    best = {0: []}
    for value in range(1, amount + 1):
        options = [
            best[value - coin] + [coin] for coin in coins if best.get(value - coin) is not None
        ]
        best[value] = min(options, key=len) if options else None
    found = best[amount]
    return None if found is None else sorted(found, reverse=True)
