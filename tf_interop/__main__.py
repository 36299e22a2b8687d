"""`python -m tf_interop` is the command `tf-interop`."""

from tf_interop.use.command_line import main

if __name__ == "__main__":
    main()
