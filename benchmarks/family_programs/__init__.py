"""Small plain programs of model families, each with its loss inside: name -> a function that gives model and batch."""

from family_programs.adapters import ADAPTERS
from family_programs.architectures import ARCHITECTURES
from family_programs.audio import AUDIO
from family_programs.constructs import CONSTRUCTS
from family_programs.data_shapes import DATA_SHAPES
from family_programs.decisions import DECISIONS
from family_programs.foreign import FOREIGN
from family_programs.forms import FORMS
from family_programs.functions import FUNCTIONS
from family_programs.idioms import IDIOMS
from family_programs.implicit import IMPLICIT
from family_programs.lengths import LENGTHS
from family_programs.libraries import LIBRARIES as MODELS
from family_programs.loops import LOOPS
from family_programs.mathematics import MATHEMATICS
from family_programs.multimodal import MULTIMODAL
from family_programs.objectives import OBJECTIVES
from family_programs.odd import ODD
from family_programs.point_sets import POINT_SETS
from family_programs.practices import PRACTICES
from family_programs.rarities import RARITIES
from family_programs.recurrences import RECURRENCES
from family_programs.samplings import SAMPLINGS
from family_programs.sequences import SEQUENCES
from family_programs.signals import SIGNALS
from family_programs.signatures import SIGNATURES
from family_programs.stacks import STACKS
from family_programs.structures import STRUCTURES
from family_programs.tables import TABLES
from family_programs.tensor_forms import TENSOR_FORMS
from family_programs.text import TEXT
from family_programs.unusual import UNUSUAL
from family_programs.vision import VISION
from family_programs.vision_libraries import VISION_LIBRARIES
from family_programs.vision_unlisted import VISION_UNLISTED
from family_programs.weights import WEIGHTS

OWN = {
    **VISION,
    **TEXT,
    **SEQUENCES,
    **AUDIO,
    **TABLES,
    **ODD,
    **CONSTRUCTS,
    **RARITIES,
    **FORMS,
    **TENSOR_FORMS,
    **IDIOMS,
    **ARCHITECTURES,
    **DATA_SHAPES,
    **FUNCTIONS,
    **RECURRENCES,
    **LENGTHS,
    **SAMPLINGS,
    **POINT_SETS,
    **PRACTICES,
    **MATHEMATICS,
    **IMPLICIT,
    **DECISIONS,
    **SIGNALS,
    **STACKS,
    **STRUCTURES,
    **WEIGHTS,
    **OBJECTIVES,
    **FOREIGN,
    **SIGNATURES,
    **UNUSUAL,
    **{name: make for name, (make, _) in LOOPS.items()},
}
LIBRARIES = {**VISION_LIBRARIES, **VISION_UNLISTED, **MODELS, **MULTIMODAL, **ADAPTERS}
PROGRAMS = {**OWN, **LIBRARIES}

__all__ = ["LIBRARIES", "LOOPS", "OWN", "PROGRAMS"]
