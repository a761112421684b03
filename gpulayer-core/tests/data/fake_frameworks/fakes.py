"""What the packages beside this one share. They mimic builds of frameworks, good and broken ones, as far as the checks
use them; ``FAKE`` in the environment says which build. A test puts those that it wants into a folder of its own."""

import json
import os
import time

FAKE = json.loads(os.environ["FAKE"])


class Matrix:
    def __init__(self, rows, device=""):
        self.rows, self.device = rows, device

    def __matmul__(self, other):
        columns = list(zip(*other.rows, strict=True))
        rows = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in self.rows]
        return Matrix(rows, self.device)

    def devices(self):
        return {self.device}

    def sum(self):
        return Number(sum(map(sum, self.rows)))


class Number(float):
    def item(self):
        return float(self)

    numpy = item


def on_device(rows, number, device=""):
    """devices: of each, why it does not compute; empty where it does."""
    why = FAKE["devices"][number]
    if why == "hang":
        time.sleep(600)
    if why == "die":
        os.abort()
    if why == "wrong":
        return Matrix([[0.0]], device)
    if why:
        raise RuntimeError(why)
    return Matrix(rows, device)


def say(words):
    """As C++ does, past Python."""
    os.write(2, words.encode() + b"\n")
