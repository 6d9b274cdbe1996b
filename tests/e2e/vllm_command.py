"""vLLM's own command, for builds under another name: it wants a distribution named "vllm"."""

import importlib.metadata

_version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.32.0+cpu" if name == "vllm" else _version(name)

if __name__ == "__main__":  # API processes import this file too.
    from vllm.entrypoints.cli.main import main

    main()
