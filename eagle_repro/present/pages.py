"""From Markdown to a page of its own: HTML with its figures inside, and PDF."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt

TEMPLATES = Path(__file__).parent / "templates"
IMAGE = re.compile(r'<img src="(?P<path>[^":]+\.png)" alt="(?P<alt>[^"]*)"\s*/?>')
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
#: Matplotlib ships these, and they have Cyrillic: a PDF looks the same on a machine without fonts.
FONTS = (("DejaVu Serif", "DejaVuSerif", "normal"), ("DejaVu Serif", "DejaVuSerif-Bold", "bold"),
         ("DejaVu Sans", "DejaVuSans", "normal"), ("DejaVu Sans", "DejaVuSans-Bold", "bold"),
         ("DejaVu Sans Mono", "DejaVuSansMono", "normal"))  # fmt: skip


def html_page(markdown: str, lang: str, folder: Path) -> str:
    """One self-contained page; `folder`: where the Markdown's image paths start."""
    text = COMMENT.sub("", markdown)
    body = _parser(lang).render(text)
    body = IMAGE.sub(lambda found: image((folder / found["path"]).read_bytes(), html.unescape(found["alt"])), body)
    body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    # A figure stands by itself, not inside a paragraph.
    body = re.sub(r"<p>(<figure>.*?</figure>)</p>", r"\1", body, flags=re.DOTALL)
    title = re.search(r"<h1>(.*?)</h1>", body)
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    page = Environment(loader=FileSystemLoader(TEMPLATES), keep_trailing_newline=True).get_template("page.html.j2")
    return page.render(lang=lang, title=title[1] if title else "", style=style, body=body)


def require_pdf() -> None:
    """Raise RuntimeError where the optional library for PDF, or what it needs of the system, is missing."""
    try:
        import weasyprint  # noqa: F401 - only whether it is there
    except (ImportError, OSError) as error:
        said = str(error).strip().splitlines()[0]
        raise RuntimeError(
            f"a PDF needs WeasyPrint, which cannot be loaded ({said}): pip install 'eagle-repro[pdf]' and the system's "
            "libpango-1.0-0 and libpangoft2-1.0-0, or print the HTML from a browser"
        ) from None


def write_pdf(page: str, path: Path) -> None:
    """Write an HTML page as PDF. Raises RuntimeError as `require_pdf` does."""
    require_pdf()
    from weasyprint import HTML
    from weasyprint.text.fonts import FontConfiguration

    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    faces = "".join(
        f'@font-face {{font-family: "{family}"; font-weight: {weight}; src: url("{(fonts / name).as_uri()}.ttf")}}\n'
        for family, name, weight in FONTS
    )
    HTML(string=page.replace("<style>\n", f"<style>\n{faces}", 1)).write_pdf(path, font_config=FontConfiguration())


def _parser(lang: str) -> MarkdownIt:
    """CommonMark with tables, and with the language's own quotation marks."""
    options = {"typographer": True, "quotes": "“”‘’" if lang == "en" else "«»„“"}
    return MarkdownIt("commonmark", options).enable(["table", "smartquotes"])


def image(png: bytes, alt: str) -> str:
    """A figure whose picture is in the page itself."""
    data = base64.b64encode(png).decode("ascii")
    return f'<figure><img src="data:image/png;base64,{data}" alt="{html.escape(alt)}"></figure>'
