"use strict";
// Functions that Dash calls in the browser, and what the pages' plain elements do.
(() => {
  const arrived = (title) => {
    if (!title) return window.dash_clientside.no_update;
    document.title = title;
    for (const link of document.querySelectorAll("#navigation a")) {
      const here = new URL(link.href).pathname;
      const current = here === "/" ? /^\/(study\/|$)/.test(location.pathname) : location.pathname.startsWith(here);
      if (current) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    return title;
  };
  window.dash_clientside = Object.assign({}, window.dash_clientside, { autotune: { arrived } });
})();
