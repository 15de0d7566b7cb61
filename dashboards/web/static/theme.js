"use strict";
// The plots' library is large, and Dash asks for it only once a page with a plot is there: where it
// will be needed it is fetched from the start, elsewhere when there is nothing else to do.
(() => {
  if (location.pathname === "/login") return;  // who has not logged in is given none of it
  const ahead = document.createElement("link");
  ahead.href = "/_dash-component-suites/plotly/package_data/plotly.min.js";
  ahead.as = "script";
  ahead.rel = location.pathname.startsWith("/study/") ? "preload" : "prefetch";
  document.head.append(ahead);
})();
// Before anything is painted: the theme that was chosen here, or the system's.
(() => {
  const KEY = "autotune-theme";
  const THEMES = ["system", "light", "dark"];
  const stored = () => {
    try { return localStorage.getItem(KEY) || "system"; } catch { return "system"; }
  };
  const apply = (theme) => {
    const root = document.documentElement;
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = { system: "◐", light: "☀", dark: "☾" }[theme];
      button.setAttribute("aria-label", `Theme: ${theme}. Choose the next`);
    }
  };
  apply(stored());
  addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    const next = THEMES[(THEMES.indexOf(stored()) + 1) % THEMES.length];
    try { localStorage.setItem(KEY, next); } catch { /* a private window keeps it for this page */ }
    apply(next);
  });
  // The button is there once the page is.
  new MutationObserver((_, watch) => {
    if (document.getElementById("theme")) { watch.disconnect(); apply(stored()); }
  }).observe(document, { childList: true, subtree: true });
})();
