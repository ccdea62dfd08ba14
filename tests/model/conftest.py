import sys
from pathlib import Path

# The reference model is kept letter for letter, and its files import each other by their bare names.
sys.path.insert(0, str(Path(__file__).parent / "reference"))
