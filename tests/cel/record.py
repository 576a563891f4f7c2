"""Records the outcomes of Kubernetes for the corpus; the only argument is the binary of `tests/oracle/cel`.

$ (cd tests/oracle/cel && go build -o /tmp/oracle-cel .) && python tests/cel/record.py /tmp/oracle-cel
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(binary: str) -> None:
    """Write golden.json: expression → the outcome on each device of devices.json, in their order."""
    sys.path.insert(0, str(HERE.parent))
    from cel import answers, test_corpus

    devices = json.loads((HERE / "devices.json").read_text())
    expressions = [text for text, _ in test_corpus.corpus()]
    queries = "".join(
        json.dumps({"expr": text, **device}) + "\n" for text in expressions for device in devices.values()
    )
    result = subprocess.run([binary], input=queries, capture_output=True, text=True, check=True)
    replies = iter(result.stdout.splitlines())
    golden = {text: [answers.of_kubernetes(json.loads(next(replies))) for _ in devices] for text in expressions}
    lines = ",\n".join(f"{json.dumps(text)}: {json.dumps(row)}" for text, row in golden.items())
    (HERE / "golden.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
