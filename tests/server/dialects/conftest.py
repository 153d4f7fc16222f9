import sys
from pathlib import Path

# The trained tokenizers are those of the rendering tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "rendering"))
