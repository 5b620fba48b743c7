"""Where an added import goes: to its sorted position among the imports around torch, otherwise after all imports."""

from __future__ import annotations

import pytest

from autofuse.source.write.added_imports import add_imports

OPS, FUNCTIONAL = "from autofuse import ops", "import torch.nn.functional as F"
TEXTS = {  # imports -> the imports with `ops` and `F`
    "import torch\n": f"import torch\n{FUNCTIONAL}\n{OPS}\n",
    "import torch\nfrom torch import nn\n": f"import torch\n{FUNCTIONAL}\n{OPS}\nfrom torch import nn\n",
    "import math\n\nimport torch\nfrom torch import nn\n\nfrom .model import Model\n": (
        f"import math\n\nimport torch\n{FUNCTIONAL}\n{OPS}\nfrom torch import nn\n\nfrom .model import Model\n"
    ),
    "import torch\nfrom torch import nn\nfrom .model import Model\n": (
        f"import torch\n{FUNCTIONAL}\n{OPS}\nfrom torch import nn\nfrom .model import Model\n"
    ),
    "from torch import nn\nimport torch\n": f"from torch import nn\nimport torch\n{OPS}\n{FUNCTIONAL}\n",
    "import torch\nimport numpy as np\n": f"import torch\nimport numpy as np\n{OPS}\n{FUNCTIONAL}\n",
    "import torch; import numpy as np\n": f"import torch; import numpy as np\n{FUNCTIONAL}\n{OPS}\n",
    "from torch.nn import (\n    Linear,\n)\n": f"{FUNCTIONAL}\n{OPS}\nfrom torch.nn import (\n    Linear,\n)\n",
    "import numpy as np\n": f"import numpy as np\n{OPS}\n{FUNCTIONAL}\n",
    "from torch import nn\nimport numpy as np\n\nfrom .model import Model\n": (
        f"from torch import nn\nimport numpy as np\n{OPS}\n{FUNCTIONAL}\n\nfrom .model import Model\n"
    ),
    "import numpy as np\n\nfrom .a import A\nfrom ..b import B\n\nx = 1\n": (
        f"import numpy as np\n{OPS}\n{FUNCTIONAL}\n\nfrom .a import A\nfrom ..b import B\n\nx = 1\n"
    ),
    "from .model import torch\n": f"from .model import torch\n{OPS}\n{FUNCTIONAL}\n",
    "import torch": f"import torch\n{OPS}\n{FUNCTIONAL}\n",
    "import torch\r\nx = 1\r\n": f"import torch\r\n{FUNCTIONAL}\r\n{OPS}\r\nx = 1\r\n",
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_an_import_goes_to_its_place(text: str) -> None:
    assert add_imports(text, [OPS, FUNCTIONAL]) == TEXTS[text]


@pytest.mark.parametrize("text", TEXTS)
def test_an_import_is_added_once(text: str) -> None:
    assert add_imports(TEXTS[text], [OPS, FUNCTIONAL]) == TEXTS[text]
