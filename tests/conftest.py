import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

# Tests use the programs under python/ and the helpers beside them, which are not installed.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
