"""All rows of the table."""

from .algebra import algebra_rows
from .batches import batch_rows
from .dense import dense_rows
from .edge_functions import edge_functions_rows
from .epoch import EpochRow
from .grids import grid_rows
from .growth import growth_rows
from .loaders import loader_rows
from .new_graphs import new_graph_rows
from .on_graphs import attention_rows, convolution_rows, every_row
from .recipes import recipe_rows
from .recurrent import recurrent_rows
from .relations import relations_rows
from .resident import ResidentRow
from .result import Row
from .sequences import sequence_rows
from .sites import sites_rows
from .small import small_rows
from .walks import walks_rows


def rows() -> list[Row]:
    """Rows with a target of their own come first, then rows that share one."""
    own: list[Row] = [*convolution_rows(), EpochRow(), *attention_rows(), ResidentRow()]
    knowledge = [*relations_rows(), *walks_rows(), *edge_functions_rows(), *recipe_rows()]
    grids = [*sequence_rows(), *grid_rows(), *sites_rows(), *recurrent_rows(), *algebra_rows()]
    often = [*small_rows(), *new_graph_rows(), *batch_rows(), *growth_rows()]
    return [*own, *often, *loader_rows(), *dense_rows(), *grids, *knowledge, *every_row()]
