/* What a click, a key or a choice on the page means. State lives in Dash stores; this file writes it there and keeps the
   pressed, checked and chosen marks of the page in step with it. No requests, no inline code. */
(function () {
  "use strict";

  const DEFAULTS = {
    view: "runs", axis: "round", metric: "", smooth: "1", scale: "auto", settings: "differ",
    sweep: "", map: "", shown: "best", inspect: "",
  };
  const state = {...DEFAULTS, chosen: [], looks: {}, order: {}, page: 0, cell: null, filter: ""};
  const set = (id, data) => window.dash_clientside.set_props(id, {data});

  // Marks

  function mark(element, name, value) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }

  function apply() {
    const chosen = new Set(state.chosen);
    document.querySelectorAll("[data-run]").forEach((box) => {
      const on = chosen.has(box.dataset.run);
      mark(box, "aria-checked", String(on));
      box.closest("tr").classList.toggle("picked", on);
    });
    const all = document.getElementById("all");
    const boxes = document.querySelectorAll("[data-run]").length;
    const on = document.querySelectorAll("tr.picked").length;
    if (all) mark(all, "aria-checked", !on ? "false" : on === boxes ? "true" : "mixed");
    document.querySelectorAll("[data-column]").forEach((head) => {
      const mine = state.order.column === head.dataset.column;
      mark(head, "aria-sort", mine ? (state.order.descending ? "descending" : "ascending") : "none");
    });
    document.querySelectorAll("button[data-store]").forEach((button) => {
      mark(button, "aria-pressed", String(state[button.dataset.store] === button.dataset.value));
    });
    document.querySelectorAll("select[data-store]").forEach((list) => {
      if (list.value !== list.dataset.chosen && document.activeElement !== list) list.value = list.dataset.chosen;
    });
    const cells = [...document.querySelectorAll("[data-cell]")];
    cells.forEach((cell) => mark(cell, "aria-pressed", String(cell.dataset.cell === state.cell)));
    const focused = cells.find((cell) => cell === document.activeElement);
    const stop = focused || cells.find((cell) => cell.dataset.cell === state.cell) || cells[0];
    cells.forEach((cell) => mark(cell, "tabindex", cell === stop ? "0" : "-1"));
    for (const view of ["runs", "sweep"]) {
      const part = document.getElementById("view-" + view);
      if (part) part.hidden = state.view !== view;
    }
  }

  let waiting = false;
  function later() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      apply();
    });
  }

  let watched = false;
  function watch() {
    if (watched) return;
    watched = true;
    const observer = new MutationObserver(later);
    for (const id of ["rows", "heat", "sweep-box", "map-box", "shown-box", "metric-box", "axis-box", "inspect-box"]) {
      const part = document.getElementById(id);
      const attributeFilter = ["data-run", "data-cell", "data-chosen"];
      if (part) observer.observe(part, {childList: true, subtree: true, attributes: true, attributeFilter});
    }
    const filter = document.getElementById("filter");
    if (filter) filter.setAttribute("aria-describedby", "filter-help");
  }

  // The address: what was chosen is in it, so that it can be shared, kept and gone back to.

  let first = null; // what the page chose by itself
  let touched = false; // an address is written once somebody did something
  let quiet = false; // while an address is being followed, none is written
  let fresh = false; // somebody did something since an address was written
  let written = 0;

  function address() {
    const query = new URLSearchParams();
    const look = (id) => (state.looks[id] ? `${id}~${state.looks[id]}` : id);
    query.set("runs", state.chosen.map(look).join(","));
    for (const [name, value] of Object.entries(DEFAULTS)) {
      const heat = ["sweep", "map", "shown"].includes(name);
      if (state[name] !== value && (!heat || state.view === "sweep")) query.set(name, state[name]);
    }
    if (state.filter) query.set("filter", state.filter);
    if (state.order.column) query.set("sort", (state.order.descending ? "-" : "") + state.order.column);
    if (state.page) query.set("page", state.page + 1);
    if (state.cell && state.view === "sweep") query.set("cell", state.cell);
    return "?" + query.toString().replaceAll("%2C", ",").replaceAll("%7E", "~");
  }

  function remember() {
    if (!touched || quiet || address() === location.search) return;
    // What follows from a click, such as the runs of a cell, is one step with it; so is a word being typed.
    const same = !fresh || Date.now() - written < 800;
    history[same ? "replaceState" : "pushState"](null, "", address());
    fresh = false;
    written = Date.now();
  }

  function follow() {
    const query = new URLSearchParams(location.search);
    const wanted = {};
    for (const [name, value] of Object.entries(DEFAULTS)) wanted[name] = query.get(name) ?? value;
    const runs = query.has("runs") ? query.get("runs").split(",").filter(Boolean) : first;
    wanted.looks = {};
    wanted.chosen = runs.map((entry) => {
      const [id, look] = entry.split("~");
      if (look) wanted.looks[id] = Number(look);
      return id;
    });
    const sort = query.get("sort") ?? "";
    wanted.order = {column: sort.replace(/^-/, ""), descending: sort.startsWith("-")};
    wanted.page = Math.max(0, (Number.parseInt(query.get("page"), 10) || 1) - 1);
    state.cell = query.get("cell");
    const filter = query.get("filter") ?? "";
    quiet = true;
    // Looks before runs: the runs are drawn with them.
    for (const name of ["looks", ...Object.keys(wanted).filter((other) => other !== "looks")]) {
      if (JSON.stringify(wanted[name]) !== JSON.stringify(state[name])) set(name, (state[name] = wanted[name]));
    }
    if (filter !== state.filter) window.dash_clientside.set_props("filter", {value: (state.filter = filter)});
    document.querySelectorAll("select[data-store]").forEach((list) => {
      if (list.id === "scale-select" || list.id === "smooth-select") mark(list, "data-chosen", state[list.dataset.store]);
    });
    later();
  }

  window.addEventListener("popstate", () => {
    if (first) follow();
  });
  for (const kind of ["click", "change", "input", "keydown"]) {
    document.addEventListener(kind, () => ((touched = fresh = true), (quiet = false)), true);
  }

  // Dash writes what people zoom to into the figure, as if the server had sent it; a new figure would undo it. So the
  // ranges that differ from those that were sent are carried over.
  const sent = {};

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    board: {
      sync: function (...values) {
        const names = ["chosen", "looks", "view", "axis", "metric", "smooth", "scale", "settings", "sweep", "map", "shown",
          "inspect", "order", "page"];
        names.forEach((name, k) => (state[name] = values[k] ?? state[name]));
        state.filter = values[names.length] ?? "";
        watch();
        if (first === null) {
          first = [...state.chosen];
          if (location.search) follow();
        }
        remember();
        later();
        return window.dash_clientside.no_update;
      },
      draw: function (next, now, id) {
        const before = sent[id] || {};
        sent[id] = {xaxis: next.layout.xaxis?.range, yaxis: next.layout.yaxis?.range};
        if (!now || !next.layout.uirevision || next.layout.uirevision !== now.layout?.uirevision) return next;
        const layout = {...next.layout};
        for (const axis of ["xaxis", "yaxis"]) {
          const mine = now.layout[axis] || {};
          const same = JSON.stringify(mine.range) === JSON.stringify(before[axis]);
          if (mine.autorange === true) layout[axis] = {...layout[axis], autorange: true, range: undefined};
          else if (mine.autorange === false && !same) {
            layout[axis] = {...layout[axis], autorange: false, range: mine.range};
          }
        }
        return {...next, layout};
      },
    },
  });

  // The button for the colours; theme.js has chosen them before anything was drawn.

  const colours = () => {
    const button = document.getElementById("theme");
    if (button) mark(button, "aria-pressed", String(document.documentElement.dataset.theme === "dark"));
  };
  document.documentElement.addEventListener("themed", colours);
  new MutationObserver((_, observer) => {
    if (document.getElementById("theme")) {
      observer.disconnect();
      colours();
    }
  }).observe(document.documentElement, {childList: true, subtree: true});

  // Clicks and keys

  // When curves go, the others keep the look that they have: the list of curves knows it.
  function choose(ids) {
    const left = new Set(ids);
    if (state.chosen.some((id) => !left.has(id))) {
      const looks = {};
      document.querySelectorAll("#legend [data-look]").forEach((curve) => {
        for (const id of curve.dataset.ids.split(" ")) if (left.has(id)) looks[id] = Number(curve.dataset.look);
      });
      set("looks", (state.looks = looks));
    }
    state.chosen = ids;
    set("chosen", ids);
    later();
  }

  function toggle(id) {
    choose(state.chosen.includes(id) ? state.chosen.filter((other) => other !== id) : [...state.chosen, id]);
  }

  document.addEventListener("click", (event) => {
    const hit = (selector) => event.target.closest(selector);
    let found;
    if ((found = hit("[data-run]"))) toggle(found.dataset.run);
    else if ((found = hit("[data-sort]"))) {
      const column = found.dataset.sort;
      const again = state.order.column === column;
      // A third click goes back to the newest first.
      const next = !again ? {column, descending: column === "result"} : {column, descending: !state.order.descending};
      const first = column === "result";
      state.order = again && state.order.descending !== first ? {column: "", descending: false} : next;
      set("order", state.order);
      set("page", (state.page = 0));
      later();
    } else if ((found = hit("[data-cell]"))) {
      state.cell = found.dataset.cell;
      set("cell", state.cell);
      later();
    } else if ((found = hit("[data-step]"))) set("page", (state.page = Math.max(0, state.page + Number(found.dataset.step))));
    else if ((found = hit("[data-drop]"))) {
      const gone = new Set(found.dataset.drop.split(" "));
      choose(state.chosen.filter((id) => !gone.has(id)));
    } else if ((found = hit("[data-only]"))) choose([found.dataset.only]);
    else if ((found = hit("button[data-store]"))) {
      state[found.dataset.store] = found.dataset.value;
      set(found.dataset.store, found.dataset.value);
      later();
    } else if (hit("#clear")) choose([]);
    else if (hit("#theme")) window.fedstaleTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    else if ((found = hit("[data-row]")) && !String(window.getSelection())) toggle(found.dataset.row);
  });

  document.addEventListener("change", (event) => {
    const list = event.target.closest("select[data-store]");
    if (!list) return;
    list.dataset.chosen = list.value;
    set(list.dataset.store, (state[list.dataset.store] = list.value));
  });

  document.addEventListener("input", (event) => {
    if (event.target.id !== "filter") return;
    state.filter = event.target.value;
    if (state.page) set("page", (state.page = 0)); // another list begins at its first page
  });

  // Dash calls `sync` only when the server has answered whatever a click asks of it; the address does not wait for that.
  for (const kind of ["click", "change", "input"]) document.addEventListener(kind, remember);

  const MOVES = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest("[data-cell]");
    const move = MOVES[event.key];
    if (!cell || !move) return;
    event.preventDefault();
    const row = cell.closest("tr");
    const rows = [...row.parentElement.rows];
    let [i, j] = [rows.indexOf(row), cell.closest("td").cellIndex];
    for (;;) {
      i += move[0];
      j += move[1];
      if (!rows[i] || !rows[i].cells[j]) return;
      const next = rows[i].cells[j].querySelector("[data-cell]");
      if (next) {
        next.focus();
        apply();
        return;
      }
    }
  });
})();
