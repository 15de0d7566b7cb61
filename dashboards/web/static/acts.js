"use strict";
// Buttons that act: a dialog asks first, and says what came of it (dashboards/web/parts/acts.py).
(() => {
  const tell = (store, data) => window.dash_clientside.set_props(store, { data: { ...data, at: Date.now() } });
  const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  window.dash_clientside.autotune = { ...window.dash_clientside.autotune, zone };
  const named = (element) => ({ act: element.dataset.act, on: element.dataset.on });

  const give = (button) => {
    const dialog = button.closest("dialog");
    const inputs = [...dialog.querySelectorAll("input[name]")];
    const wanting = inputs.find((input) => !input.reportValidity());
    if (wanting) return;
    button.disabled = true;
    button.dataset.words = button.textContent;
    button.textContent = "…";
    tell("act-given", { ...named(dialog), fields: Object.fromEntries(inputs.map((input) => [input.name, input.value])) });
  };

  // What came of it is seen, however long the dialog is; the button that was pressed has gone.
  const answered = (dialog) => {
    const told = dialog.querySelector("#act-answer .notice");
    if (!told || "seen" in told.dataset) return;
    told.dataset.seen = "";
    told.parentElement.scrollIntoView({ block: "end" });
    if (document.activeElement === document.body) told.parentElement.querySelector("button:not([data-do])")?.focus();
  };

  addEventListener("click", (event) => {
    event.target.closest?.("dialog.act a")?.closest("dialog").close();  // it leads to another page
    const target = event.target.closest?.("button");
    if (!target) return;
    if ("do" in target.dataset) give(target);
    else if (target.dataset.act) tell("act-asked", named(target));
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.matches?.("dialog.act input")) return;
    event.preventDefault();
    event.target.closest("dialog").querySelector("[data-do]")?.click();
  });
  // The page's own words that the service is gone are below the dialog: it says so itself, and what
  // was not answered may be asked again.
  addEventListener("autotune:lost", ({ detail }) => {
    const dialog = document.querySelector("dialog.act[open]");
    if (!dialog) return;
    const button = dialog.querySelector("[data-do]:disabled");
    if (button) Object.assign(button, { disabled: false, textContent: button.dataset.words });
    const told = Object.assign(document.createElement("p"), { className: "notice bad gone", role: "alert", textContent: detail });
    dialog.prepend(told);
  });
  addEventListener("autotune:found", () => document.querySelectorAll("dialog.act .gone").forEach((each) => each.remove()));
  // A page that was drawn anew meanwhile has another button in the place of the one that asked.
  addEventListener("close", (event) => {
    const dialog = event.target, active = document.activeElement;
    if (!dialog.matches?.("dialog.act") || !(active === document.body || dialog.contains(active))) return;
    const { act, on } = named(dialog);
    document.querySelector(`button[data-act="${CSS.escape(act)}"][data-on="${CSS.escape(on)}"]`)?.focus();
  }, true);
  // A dialog that has just come is opened over the page: the keyboard stays within it, Escape
  // closes it, and the button that asked for it has the focus again. The focus is in the first
  // field (fields come a moment after the dialog), else on what leaves all as it is: never on the
  // button that acts, which one more Enter would press before anything was read.
  new MutationObserver(() => {
    const dialog = document.querySelector("dialog.act");
    if (dialog) answered(dialog);
    if (!dialog || dialog.dataset.seen === "field") return;
    const field = dialog.querySelector("input"), safe = dialog.querySelector("button:not([data-do])");
    const fresh = !("seen" in dialog.dataset);
    dialog.dataset.seen = field ? "field" : "";
    if (fresh) dialog.showModal();
    if (fresh || (field && document.activeElement === safe)) (field || safe)?.focus();
  }).observe(document, { childList: true, subtree: true });
})();
