"""The dashboard: Dash pages on a FastAPI application. It asks only `Desks`.

app      `create_app`: pages, routers and middleware made into one application
routing  what a page is, and which one a path names
shell    what stands around every page: navigation, theme, live region
style    the style sheet, from the report's
pages    one module per page
parts    what pages are built of
static   the style sheet and scripts of our own; nothing comes from another host
security  who may ask, from where: the guard before all of it (origins, sessions, attempts, headers)
identity  who asks, for whatever answers; operators: desks that do nothing for viewers
bounded   bodies of a bounded length, and an answer whatever happens
"""
