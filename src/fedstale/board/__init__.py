"""The board: a live, read-only page over a store, in the browser. `fedstale board` runs it; needs the extra `board`.

board = Board("fedstale-runs")
print(board.url)
board.serve()
"""

from .server import Board, make_app

__all__ = ["Board", "make_app"]
