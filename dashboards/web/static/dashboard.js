"use strict";
// Functions that Dash calls in the browser, and what plain elements of the pages do.
(() => {
  // ------------------------------------------------------------------- whether the service answers
  // What pages show is as old as the last answer. Dash itself says nothing of a question that fails.
  const LATE_MS = 15000, SOON_MS = 500;  // the second: a page that is being left fails too
  const ask = window.fetch.bind(window);
  let answered = new Date(), doubt = 0;
  const clock = (time) => time.toLocaleTimeString("en-GB");
  const lost = () => {
    const place = document.getElementById("no-answer");
    if (!place || "lost" in document.documentElement.dataset) return;
    document.documentElement.dataset.lost = "";
    place.textContent = `The service gives no answer since ${clock(answered)}. What stands here is from before; it goes on by itself when the service does.`;
    dispatchEvent(new CustomEvent("autotune:lost", { detail: `The service gives no answer since ${clock(answered)}.` }));
  };
  const found = () => {
    answered = new Date();
    clearTimeout(doubt);
    doubt = 0;
    if (!("lost" in document.documentElement.dataset)) return;
    delete document.documentElement.dataset.lost;
    document.getElementById("no-answer").textContent = "";
    dispatchEvent(new CustomEvent("autotune:found"));
  };
  const doubted = (soon) => {
    if (soon) clearTimeout(doubt);
    if (soon || !doubt) doubt = setTimeout(lost, soon ? SOON_MS : LATE_MS);
  };
  let leaving = false;  // several questions may be refused at once
  const toLogin = () => {
    if (leaving) return;
    leaving = true;
    setTimeout(() => { leaving = false; }, LATE_MS);
    location.replace(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  };
  window.fetch = async (...given) => {
    doubted(false);
    if (String(given[0]).includes("/_dash-update-component")) dispatchEvent(new CustomEvent("autotune:asked"));
    try {
      const answer = await ask(...given);
      const away = answer.redirected && new URL(answer.url).pathname === "/login";
      if (answer.status === 401 || away) toLogin();
      if ([502, 503, 504].includes(answer.status)) doubted(true); else found();
      return answer;
    } catch (error) {
      doubted(true);
      throw error;
    }
  };
  // A page that follows nothing, or seldom, asks all the same.
  const IDLE_MS = 10000, LOOK_MS = 5000;
  const look = () => {
    if (!document.hidden && new Date() - answered > IDLE_MS) window.fetch("/api/v1/me").catch(() => {});
  };
  setInterval(look, LOOK_MS);
  document.addEventListener("visibilitychange", look);

  // A database that did not answer does again: what a page said of it goes, and a page that could not
  // be made for it is asked for once more.
  const passed = async () => {
    const where = document.querySelector("#page [data-passes], #problem [data-passes]");
    if (document.hidden || !where) return;
    const told = await ask("/readyz").then((answer) => answer.json()).catch(() => null);
    if (!told || told.problems.includes("database")) return;
    if (where.closest("#problem")) window.dash_clientside.set_props("problem", { children: null });
    else location.reload();
  };
  setInterval(passed, LOOK_MS);

  // ---------------------------------------------------------------------------------- focus
  // A page that is drawn anew while it is looked at has another element in the place of the one
  // that had the focus: that gets it, or who uses the keyboard would begin at the top again.
  let focused = null;
  const named = (element) => {
    if (element.id) return `#${CSS.escape(element.id)}`;
    const { act, on } = element.dataset;
    if (act) return `button[data-act="${CSS.escape(act)}"][data-on="${CSS.escape(on)}"]`;
    const href = element.getAttribute("href");
    return href && `main a[href="${CSS.escape(href)}"]`;
  };
  addEventListener("focusin", (event) => { focused = event.target; });
  addEventListener("pointerdown", () => { focused = null; });
  new MutationObserver(() => {
    if (!focused || focused.isConnected || document.activeElement !== document.body) return;
    const name = named(focused);
    focused = null;
    if (name) document.querySelector(name)?.focus({ preventScroll: true });
  }).observe(document, { childList: true, subtree: true });

  // ------------------------------------------------------------------------------ navigation
  let onceHere = false;
  const arrived = (title) => {
    if (!title) return window.dash_clientside.no_update;
    // On another page than the first one, who uses the keyboard goes on from its beginning.
    if (onceHere) document.getElementById("page")?.focus({ preventScroll: true });
    onceHere = true;
    document.title = title;
    for (const link of document.querySelectorAll("#navigation a")) {
      const at = new URL(link.href).pathname;
      const here = at === "/" ? /^\/(study\/|$)/.test(location.pathname) : location.pathname.startsWith(at);
      if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    return title;
  };
  // What part of a plot is looked at, in the metrics' units; unchanged where it is still the same.
  const zoomed = (told, figure, before) => {
    const same = window.dash_clientside.no_update;
    if (!told || !figure) return same;
    if (told["xaxis.autorange"] || told["yaxis.autorange"]) return before ? null : same;
    if (!Object.keys(told).some((key) => /^[xy]axis\.range/.test(key))) return same;
    const ends = (name) => {
      const axis = figure.layout[name];
      const [first, last] = [told[`${name}.range[0]`] ?? axis.range[0], told[`${name}.range[1]`] ?? axis.range[1]];
      return axis.type === "log" ? [10 ** first, 10 ** last] : [first, last];
    };
    return { axes: figure.layout.xaxis.uirevision, x: ends("xaxis"), y: ends("yaxis") };
  };
  // The page of a trial whose point was clicked.
  const chosen = (clicked, path) => {
    const number = clicked?.points[0].customdata;
    return number === undefined || number === null ? window.dash_clientside.no_update : `${path.replace(/\/$/, "")}/trial/${number}`;
  };
  window.dash_clientside = Object.assign({}, window.dash_clientside, { autotune: { arrived, chosen, zoomed } });

  const go = (href) => {
    history.pushState({}, "", href);
    dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    scrollTo(0, 0);
  };
  const plain = (event) => !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || event.button);
  addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-inner]");
    if (link && plain(event)) { event.preventDefault(); go(link.getAttribute("href")); }
  });
  // Enter on any cell of a row opens what the row's link names.
  addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !plain(event) || !event.target.matches?.(".ag-cell")) return;
    const row = event.target.closest("[row-id]");
    const same = [...event.target.closest(".ag-root").querySelectorAll("[row-id]")].filter((each) => each.getAttribute("row-id") === row.getAttribute("row-id"));
    const link = same.map((each) => each.querySelector("a[data-inner]")).find(Boolean);
    if (link) { event.preventDefault(); go(link.getAttribute("href")); }
  });

  // ---------------------------------------------------------------------- times in the reader's zone
  const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const local = (time) => {
    if (time.dataset.local === time.dateTime) return;
    time.dataset.local = time.dateTime;
    time.title = time.dateTime;
    time.textContent = zone.format(new Date(time.dateTime));
  };
  new MutationObserver(() => document.querySelectorAll("time").forEach(local))
    .observe(document, { childList: true, subtree: true });

  // ------------------------------------------------------------------------------------ grids
  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  functions.autotuneNumber = (value) => {
    if (value === undefined || value === null) return "–";
    const size = Math.abs(value);
    const digits = size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2;
    return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  };
  functions.autotuneShare = (value) => value === undefined || value === null ? "–"
    : `${(100 * value).toLocaleString("en-US", { maximumFractionDigits: 2 })}%`;
  const make = (...parts) => window.React.createElement(...parts);
  components.AutotuneTrial = ({ data }) => data && make("span", null,
    make("a", { href: `/study/${data.s}/trial/${data.n}`, "data-inner": "" }, String(data.n)),
    data.pick ? make("span", { className: "tag" }, "pick") : null);
  components.AutotuneStanding = ({ value }) => make("span", { className: `state ${String(value).replace(" ", "-")}` }, value);
})();
