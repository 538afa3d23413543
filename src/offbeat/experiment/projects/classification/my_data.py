"""The samples. Replace `load` with a function that returns yours."""

from sklearn.datasets import load_digits


def load():
    """(inputs, classes): 1,797 images of 64 pixels each, and the digit that each of them shows.

    Tensors, tables, files and torch data sets work as well, and so do pairs (train, test) of them.
    """
    digits = load_digits()
    return digits.data.astype("float32") / 16, digits.target
