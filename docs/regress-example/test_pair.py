"""The pair is as good and as exact as when its baseline was written. The fixture comes with the package foretoken."""


def test_the_pair(foretoken_baseline) -> None:
    foretoken_baseline("pair.json")
