"""Reading a page as a browser would, strictly: what is open must be closed, and where text, links and names are."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A page taken apart."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.policy = [], [], [], ""
        self.sections = {}  # title -> text
        self._open, self._section, self._title = [], None, False
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)
        named = dict(attrs)
        if "id" in named:
            self.ids.append(named["id"])
        self.links += [(name, value) for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        assert not [name for name in named if name.startswith("on")]
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"]
        self._title = tag == "h2"

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self._title = False

    def handle_data(self, data):
        if self._title:
            self._section = data
            self.sections[data] = ""
        elif self._section is not None and "section" in self._open:
            self.sections[self._section] += data
