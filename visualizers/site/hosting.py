"""The rule file for hosts that run Apache: Markdown for whoever asks for it, its type, the page for lost readers.

GitHub Pages cannot choose by ``Accept``; there the addresses that end in ``.md`` do the same.
"""

from __future__ import annotations

HTACCESS = ".htaccess"


def htaccess(site_url: str) -> str:
    """The rules for a site whose address is ``site_url``; they lie in its root folder and hold below any path."""
    base = "/" + site_url.split("://", 1)[-1].partition("/")[2]
    return f"""\
# Written by `handbook build`.
AddType "text/markdown; charset=utf-8" .md
ErrorDocument 404 {base}404.html
<IfModule mod_rewrite.c>
  RewriteEngine On
  RewriteCond %{{HTTP_ACCEPT}} text/markdown [NC]
  RewriteCond %{{REQUEST_FILENAME}}index.md -f
  RewriteRule (^|/)$ %{{REQUEST_URI}}index.md [L]
</IfModule>
<IfModule mod_headers.c>
  Header merge Vary Accept
  Header set Access-Control-Allow-Origin "*"
  Header merge Link "<{base}llms.txt>; rel=\"help\"; type=\"text/plain\""
</IfModule>
"""
