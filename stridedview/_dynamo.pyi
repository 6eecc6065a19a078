from typing import Any

# Internal: nothing here is public, and it is called from untyped code alone.
def __getattr__(name: str) -> Any: ...
