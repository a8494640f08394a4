// What the pages cannot do by themselves: theme, live parts, dialogs, selection, keys. No framework besides htmx.
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const below = new URL(document.currentScript.src).pathname.replace(/\/ui\/static\/.*/, ""); // a prefix, if there is one
  const root = document.documentElement, dialog = $("#dialog"), live = $("#live");

  // --- theme -------------------------------------------------------------------------------------
  $$("[data-theme-toggle]").forEach((button) => button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("penstock-theme", root.dataset.theme); } catch { /* a private window keeps nothing */ }
  }));

  // --- toast ------------------------------------------------------------------------------------
  const toast = $("#toast");
  let toastTimer = 0;
  const say = (text) => {
    $("span", toast).textContent = text;
    toast.hidden = false;
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => { toast.hidden = true; }, 8000);
  };
  $("[data-close-toast]").addEventListener("click", () => { toast.hidden = true; });
  if (!toast.hidden) say($("span", toast).textContent);

  // --- live parts: swapped by id, never while somebody is at them -----------------------------------
  const word = $("[data-live-word]"), time = $("[data-live-time]"), liveState = $("#live-state");
  let paused = false, lastGood = time ? time.textContent : "";
  const tell = (text, isStale) => {
    if (!word) return;
    word.textContent = text;
    liveState.classList.toggle("stale", isStale);
    root.classList.toggle("is-stale", isStale);
  };
  const isBusy = (part) => part.contains(document.activeElement) || part.matches(":hover:has(a:hover, button:hover, summary:hover)")
    || $("tbody input:checked", part) !== null || !document.getSelection().isCollapsed && part.contains(document.getSelection().anchorNode);
  if (live) {
    document.body.addEventListener("htmx:beforeRequest", (event) => {
      if (event.target === live && (paused || document.hidden || $("dialog[open]"))) event.preventDefault();
    });
    document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
      if (isBusy(event.detail.target)) { event.detail.shouldSwap = false; return; }
      const open = new Set($$("details", event.detail.target).map((one, place) => one.open ? place : -1));
      $$("details", event.detail.fragment).forEach((one, place) => { one.open = open.has(place); });
    });
    document.body.addEventListener("htmx:afterRequest", (event) => {
      if (event.target !== live) return;
      const xhr = event.detail.xhr;
      if (event.detail.successful) {
        $("#notices").replaceChildren();
        const fresh = new DOMParser().parseFromString(xhr.responseText, "text/html");
        lastGood = $("[data-live-time]", fresh)?.textContent ?? lastGood;
        time.textContent = lastGood;
        tell("Live", false);
        connectPicks();
      } else if (xhr.status) {
        note(xhr.responseText);
        tell(xhr.status === 401 ? "Signed out" : xhr.status === 404 ? "Gone" : "Not fresh", true);
      }
    });
    const note = (text) => {
      const problem = $("#problem", new DOMParser().parseFromString(text, "text/html"));
      if (!problem || problem.outerHTML === $("#notices #problem")?.outerHTML) return; // somebody may be at its link
      $("#notices").replaceChildren(document.importNode(problem, true));
    };
    const cut = () => tell("Reconnecting, last at " + lastGood, true);
    document.body.addEventListener("htmx:sendError", cut);
    document.body.addEventListener("htmx:sseError", (event) => {
      if (event.detail.source.readyState !== EventSource.CLOSED) cut();
      else if (!paused) refused();
    });
    // A stream that was refused does not say why: ask for it as a page, which does, in words.
    const refused = async () => {
      const asking = new AbortController();
      try {
        const answer = await fetch($("[sse-connect]").getAttribute("sse-connect"), { signal: asking.signal, credentials: "same-origin" });
        if (answer.status === 429) { note(await answer.text()); tell("Not live", true); return; }
        asking.abort();
      } catch { /* nobody answers, which the request below finds too */ }
      htmx.trigger(live, "live-now");
    };
    // A browser allows six connections to one host, so a tab that nobody looks at gives its own back.
    let stream = null, wasOpen = false;
    const rest = () => { if (document.hidden && stream) stream.close(); };
    document.body.addEventListener("htmx:sseOpen", (event) => {
      stream = event.detail.source;
      rest();
      if (wasOpen && !paused) htmx.trigger(live, "live-now"); // it was cut: catch up at once
      wasOpen = true;
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) rest();
      else if (stream?.readyState === EventSource.CLOSED) stream.onerror(new Event("error")); // the extension connects again
    });
    $("[data-live-toggle]").addEventListener("click", (event) => {
      paused = !paused;
      const button = event.currentTarget;
      button.setAttribute("aria-pressed", paused);
      $("span", button).textContent = paused ? "Resume" : "Pause";
      tell(paused ? "Paused" : "Live", false);
      if (!paused) htmx.trigger(live, "live-now");
    });
  }

  // --- selection ----------------------------------------------------------------------------------
  const connectPicks = () => $$("[data-pick]").forEach((form) => {
    if (form.dataset.connected) return;
    form.dataset.connected = "yes";
    const boxes = $$("tbody input[type=checkbox]", form), all = $("[data-all]", form), bar = $(".bulk", form);
    if (!bar) return;
    const sync = () => {
      const count = boxes.filter((box) => box.checked).length;
      boxes.forEach((box) => box.closest("tr").classList.toggle("sel", box.checked));
      all.checked = count === boxes.length && count > 0;
      all.indeterminate = count > 0 && count < boxes.length;
      bar.hidden = count === 0;
      $("b", bar).textContent = count;
    };
    boxes.forEach((box) => box.addEventListener("change", sync));
    all.addEventListener("change", () => { boxes.forEach((box) => { box.checked = all.checked; }); sync(); });
    $("[data-none]", form).addEventListener("click", () => { boxes.forEach((box) => { box.checked = false; }); sync(); });
    sync();
  });
  connectPicks();

  // --- dialogs: what an action will touch is shown before it is done -----------------------------------
  let opener = null;
  const ask = async (address, options) => {
    try {
      const answer = await fetch(address, { headers: { "HX-Request": "true" }, credentials: "same-origin", ...options });
      const onward = answer.headers.get("HX-Redirect") ?? (answer.redirected ? answer.url : null);
      if (onward) { location.href = onward; return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const preview = $(".preview", page) ?? $("#problem", page);
      $("#dialog-in").replaceChildren(document.importNode(preview, true));
      if (!dialog.open) dialog.showModal();
      ($("#dialog-in input:not([type=hidden]), #dialog-in select, #dialog-in textarea") ?? $("#preview-title") ?? dialog).focus();
    } catch {
      location.href = typeof address === "string" ? address : address.href; // without a dialog, as a page of its own
    }
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-do]"), button = event.target.closest("[data-do-form]");
    const plain = event.metaKey || event.ctrlKey || event.shiftKey || event.button;
    if (link && !plain) {
      event.preventDefault();
      opener = link;
      ask(link.href);
    } else if (button) {
      event.preventDefault();
      opener = button;
      const form = button.form, address = new URL(button.getAttribute("formaction") ?? form.getAttribute("action"), location.href);
      address.search = new URLSearchParams(new FormData(form)).toString();
      ask(address.href);
    } else if (event.target.closest("#dialog [data-close]")) {
      event.preventDefault();
      dialog.close();
    }
  });
  dialog.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches(".preview")) return;
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    $$("button", form).forEach((one) => { one.disabled = true; });
    ask(form.action, { method: "POST", body });
  });
  dialog.addEventListener("close", () => { $("#dialog-in").replaceChildren(); if (opener?.isConnected) opener.focus(); });

  // --- copy -----------------------------------------------------------------------------------------
  $$("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      say("Copied.");
    } catch { say("The browser did not allow to copy."); }
  }));

  // --- keys: none of them destroys anything -------------------------------------------------------------
  const places = { o: "/", q: "/ui/queues", d: "/ui/dead", s: "/ui/schedules", b: "/ui/bus", l: "/ui/logs", t: "/ui/topologies", c: "/ui/circuits", w: "/ui/workers", r: "/ui/report", h: "/ui/changes", e: "/ui/settings" };
  $("[data-keys]").addEventListener("click", () => $("#keys").showModal());
  let goes = false;
  addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.metaKey || event.ctrlKey || event.altKey || $("dialog[open]")) return;
    if (event.key === "/") { event.preventDefault(); $("#find").focus(); return; }
    if (event.key === "?") { $("#keys").showModal(); return; }
    if (event.key === "p" && !goes && live) { $("[data-live-toggle]").click(); return; }
    if (goes && Object.hasOwn(places, event.key)) location.href = below + places[event.key];
    goes = event.key === "g";
  });
})();
