// Parley console: what HTML and CSS cannot do. Reading, filtering and retrying work without it.
(() => {
  const $ = (s, n = document) => n.querySelector(s), $$ = (s, n = document) => [...n.querySelectorAll(s)];
  const root = document.documentElement;
  const keep = (k, v) => { try { return v === undefined ? localStorage.getItem(k) : localStorage.setItem(k, v); } catch { return null; } };

  // The theme is a cookie, so that the server writes it into the page and nothing flashes.
  const flip = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = "parley-theme=" + root.dataset.theme + ";path=/console;max-age=31536000;samesite=lax";
  };

  const say = text => { $("#said").textContent = text; };
  document.addEventListener("click", e => {
    if (e.target.closest("[data-theme-toggle]")) return flip();
    $$("details.menu[open]").forEach(d => { if (!d.contains(e.target)) d.open = false; });
    const b = e.target.closest("[data-copy]");
    if (!b) return;
    e.preventDefault();
    navigator.clipboard?.writeText(b.dataset.copy).then(() => say("Copied " + b.dataset.copy), () => say("The browser does not allow copying"));
    b.classList.add("signed"); setTimeout(() => b.classList.remove("signed"), 900);
  });

  // Rows: j and k move the selection, also in the diagram.
  const rows = () => $$("[data-row]");
  const mark = (r, on) => {
    if (r.localName !== "tr") r.classList.toggle("on", on);
    else if (on) r.setAttribute("aria-selected", "true");
    else r.removeAttribute("aria-selected");
  };
  const move = d => {
    const all = rows(); if (!all.length) return;
    let i = all.findIndex(r => r.matches("[aria-selected=true], .on"));
    if (i >= 0) mark(all[i], false);
    i = Math.min(all.length - 1, Math.max(0, i + d));
    mark(all[i], true);
    all[i].scrollIntoView({ block: "nearest" });
    (all[i].matches("a") ? all[i] : $("a", all[i]))?.focus({ preventScroll: true });
    // The chosen row is in the address, as after a click.
    if (all[i].localName === "tr" && all[i].dataset.row) {
      const u = new URL(location); u.searchParams.set("m", all[i].dataset.row); history.replaceState(history.state, "", u);
    }
  };

  // Dialogs are targets of links, so that they work without a script; with it they keep the focus and give it back.
  // A jump to a dialog takes the focus away before hashchange: what had it last is remembered, also for the next page,
  // because some dialogs are pages of their own, and a form leads to another.
  let last, back, open = false;
  const opener = "parley-opener", kept = (do_, ...v) => { try { return sessionStorage[do_](opener, ...v); } catch { return null; } };
  const named = n => n?.id ? "#" + CSS.escape(n.id) : n?.getAttribute("href") ? `a[href="${CSS.escape(n.getAttribute("href"))}"]` : "";
  addEventListener("focusin", e => { if (!e.target.closest(".scrim")) last = e.target; });
  const dialog = () => {
    const d = /^#[a-z][a-z0-9-]*$/.test(location.hash) && $(".scrim" + location.hash);
    const behind = $$(".skip, .top, main");
    for (const n of behind) n.inert = false;
    open = Boolean(d);
    if (!d) { back?.focus(); back = null; return; }
    back = last;
    if ($("main").contains(d)) { $$("body > .scrim[data-moved]").forEach(n => n.remove()); d.dataset.moved = ""; document.body.append(d); }
    for (const n of behind) n.inert = true;
    $("input:not([type=hidden]), select, .btn", d)?.focus();
  };
  addEventListener("hashchange", dialog);
  addEventListener("load", () => { // the page has a target only now
    dialog();
    const before = kept("getItem") || "", n = before[1] && $(before.slice(1));
    kept("removeItem");
    if (open) back = n;
    else if (before[0] === "!") (n || $("#done"))?.focus();
  });
  addEventListener("pagehide", () => kept("setItem", (open ? "!" : " ") + named(open ? back : last)));

  // Enter that is still down from opening a dialog does not submit it.
  let down;
  for (const type of ["keydown", "keypress"]) document.addEventListener(type, e => {
    if (type === "keydown" && !e.repeat) down = e.target;
    if (e.key === "Enter" && e.target.closest(".scrim") && (e.repeat || e.target !== down)) e.preventDefault();
  }, true);

  // A row that is opened by its link is swapped: the link of the new row has the focus then.
  let had = false;
  document.addEventListener("htmx:beforeSwap", () => { had = $("main").contains(document.activeElement); });
  document.addEventListener("htmx:afterSettle", () => {
    if (had && document.activeElement === document.body) $("[aria-selected=true] a")?.focus({ preventScroll: true });
    had = false;
  });

  // Keys, unless the reader switched them off (WCAG 2.1.4).
  const onOff = $("[data-keys-on]");
  if (onOff) {
    onOff.checked = keep("parley-keys") !== "off";
    onOff.addEventListener("change", () => { keep("parley-keys", onOff.checked ? "on" : "off"); say(onOff.checked ? "Keys are on" : "Keys are off"); });
  }
  let pending = "";
  document.addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape") { if (location.hash) location.hash = "_"; $$("details.menu[open]").forEach(d => { d.open = false; }); document.activeElement?.blur(); return; }
    if (e.target.matches("input:not([type=checkbox]), textarea, select") || keep("parley-keys") === "off") return;
    const screen = pending === "g" && $(`#nav [data-key="${CSS.escape(e.key)}"]`);
    pending = e.key;
    if (screen) { pending = ""; screen.click(); return; }
    const press = s => { const n = $(s); n?.click(); return n; };
    const ask = s => { $(s)?.focus(); press(s); };
    const act = {
      j: () => move(1), k: () => move(-1), "/": () => $("#q")?.focus(), "?": () => { location.hash = "keys"; }, t: flip,
      f: () => press("[data-key-f]"), ".": () => press("[data-key-new]:not([hidden])"), p: () => press("[data-live]"),
      e: () => ask("[data-key-e]"), r: () => ask("[data-key-r]"),
      c: () => ($("[aria-selected=true] [data-copy], .on [data-copy]") || $(".side [data-copy]") || $("[data-copy]"))?.click(),
      Enter: () => $("[data-row]:is([aria-selected=true], .on) a, a[data-row].on")?.click(),
    }[e.key];
    if (act && !(e.key === "Enter" && e.target.closest("a, button"))) { e.preventDefault(); act(); }
  });

  // Ctrl+Enter in a field of such a form presses its button, once however long the keys are held.
  document.addEventListener("keydown", e => {
    const f = e.key === "Enter" && (e.ctrlKey || e.metaKey) && e.target.closest("form[data-ctrl-enter]");
    const b = f && $(".btn.go:not([disabled])", f);
    if (b && !e.repeat) { e.preventDefault(); b.click(); }
  });

  // The other scripts have much to do with a long page: it is painted before they run.
  addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => $$("link[as=script]").forEach(l => {
    const s = document.createElement("script");
    s.src = l.href; s.async = false; s.onload = () => l.remove();
    document.head.append(s);
  }))));
})();
