"""The samples. Replace `load` with a function that returns yours.

For a folder of .txt files, one per client, there is no need of one: data = { texts = "FOLDER" } and model = "gpt".
"""

from pydoc_data.topics import topics

LETTERS = " abcdefghijklmnopqrstuvwxyz.,()_"


def encode(line):
    """Letters as whole numbers; a tokeniser would do the same with words or parts of them."""
    return [LETTERS.index(letter) for letter in line.strip().lower()[:60] if letter in LETTERS]


def load(topics_used=8):
    """Columns by name: lines of Python's own manual as tokens, of any length, and the topic that each belongs to."""
    longest = sorted(topics, key=lambda topic: len(topics[topic]))[-topics_used:]
    lines = [(encode(line), topic) for topic in longest for line in topics[topic].splitlines()]
    lines = [(tokens, topic) for tokens, topic in lines if len(tokens) > 20]
    return {"tokens": [tokens for tokens, _ in lines], "topic": [topic for _, topic in lines]}
