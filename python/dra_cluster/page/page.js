// Live updates: loads the page again and exchanges the parts that changed. The page is complete without it.
"use strict";

const INTERVAL_MS = 2000;
const TIMEOUT_MS = 10000;
const connection = document.createElement("p");
connection.id = "connection";
connection.className = "problem";
connection.setAttribute("role", "status");
document.querySelector("main").prepend(connection);

function exchange(fresh) {
  const parts = fresh.querySelectorAll("main > [data-live]");
  const ids = Array.from(parts, (part) => part.id);
  const present = Array.from(document.querySelectorAll("main > [data-live]"), (part) => part.id);
  if (ids.join() !== present.join()) {
    const main = document.adoptNode(fresh.querySelector("main"));
    document.querySelector("main").replaceWith(main);
    main.prepend(connection);
    return;
  }
  for (const part of parts) {
    const old = document.getElementById(part.id);
    // A part with the focus is left alone, so that nobody loses a place.
    if (!old.isEqualNode(part) && !old.contains(document.activeElement)) {
      old.replaceWith(document.adoptNode(part));
    }
  }
}

async function update() {
  try {
    const response = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!response.ok) {
      throw new Error(response.statusText);
    }
    exchange(new DOMParser().parseFromString(await response.text(), "text/html"));
    connection.textContent = "";
  } catch (error) {
    if (!connection.textContent) {
      const time = new Date().toLocaleTimeString();
      connection.textContent = `⚠ No response from dra-agent ui since ${time}. The values below are the last ones.`;
    }
  }
}

const deadlines = new WeakMap(); // of each timer, by the clock of this document

function countDown() {
  const now = performance.now() / 1000;
  for (const timer of document.querySelectorAll("[data-seconds]")) {
    if (!deadlines.has(timer)) {
      deadlines.set(timer, now + Number(timer.dataset.seconds));
    }
    const left = Math.abs(deadlines.get(timer) - now);
    if (left < 120) {
      timer.textContent = `${Math.round(left)} s`;
    }
  }
}

async function run() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
    if (!document.hidden) {
      await update();
    }
  }
}

countDown();
setInterval(countDown, 1000);
run();
