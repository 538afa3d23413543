"""Root pages and notebooks on the site, the names of files above their blocks, links that leave docs/."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are kept in the root, and the notebooks as pages to read."""
    for source, page in PAGES.items():
        text = re.sub(r"\]\((docs/)?([^)\s]+)\)", _in_docs, (ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=_notebook(path)))
    return files


def _notebook(path: Path) -> str:
    """Its cells, one below the other, and a link to the file after the title."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    found = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts]
    title, _, rest = found[0].partition("\n")
    download = f'<a href="../{path.name}" download>Download this notebook</a>'
    return "\n\n".join([title, download, rest, *found[1:]])


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Give a block that names a file a title; link what is not on the site in the repository, if that is known."""
    titled = re.sub(r"^(```|~~~)(\w+) +([\w./-]+)$", r'\1\2 title="\3"', markdown, flags=re.MULTILINE)
    folder = posixpath.dirname(page.file.src_uri)

    def there(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if re.match(r"#|https?:|mailto:", target):
            return found[0]
        name = target.partition("#")[0]
        if name.endswith(".ipynb"):  # shown as a page
            return f"[{text}]({name.removesuffix('.ipynb')}.md)"
        if files.get_file_from_path(posixpath.normpath(posixpath.join(folder, name))) and not name.endswith("/"):
            return found[0]
        path = posixpath.normpath(posixpath.join("docs", folder, name))
        if not (ROOT / path).exists():
            return found[0]  # for the link check to complain about
        return f"[{text}]({config.repo_url}/tree/main/{path})" if config.repo_url else text

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", there, titled)


def _in_docs(found: re.Match[str]) -> str:
    """A link of a page in the root, as seen from docs/."""
    docs, target = found[1], found[2]
    if docs or re.match(r"#|https?:", target):
        return f"]({target})"
    return f"]({PAGES.get(target, '../' + target)})"
