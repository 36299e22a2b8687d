"""`python -m tf_interop` is the command `tf-interop`."""

from tf_interop.cli.main import main

if __name__ == "__main__":
    main()
