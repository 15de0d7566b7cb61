"use strict";
// The plots' library is large. A page that has plots fetches it from the start and runs it while the
// service answers; elsewhere it is fetched when there is nothing else to do, and run with the first
// plot: Dash takes what `window.Plotly` is, and waits where that is a promise.
(() => {
  const address = document.currentScript.dataset.plots;
  if (!address) return;  // who has not logged in is given none of it
  const soon = /^\/(study|models)\//.test(location.pathname);
  document.head.append(Object.assign(document.createElement("link"), { rel: soon ? "preload" : "prefetch", as: "script", href: address }));
  let asked;
  const load = () => asked ??= new Promise((done, failed) => {
    const onerror = (error) => { delete window.Plotly; failed(error); };  // Dash's own way is left
    document.head.append(Object.assign(document.createElement("script"), { src: address, onload: done, onerror }));
  });
  const set = (value) => Object.defineProperty(window, "Plotly", { value, writable: true, configurable: true });
  Object.defineProperty(window, "Plotly", { get: load, set, configurable: true });
  if (soon) addEventListener("autotune:asked", load, { once: true });
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
