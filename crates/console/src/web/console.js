"use strict";
// Live pages: when something has changed, the page is fetched again and what stands in <main> is put in its place. Whoever is
// reading with the keyboard or filling in a form is not disturbed. Without this script a page is as complete, and reloaded by hand.
(() => {
  const main = document.querySelector("main[data-live]");
  if (main && window.EventSource) {
    let busy = false;
    const isRead = () => document.hidden || (document.activeElement !== document.body && main.contains(document.activeElement));
    const refresh = async () => {
      if (busy || isRead()) return;
      busy = true;
      try {
        const answer = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
        if (answer.ok) {
          const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
          // Somebody may have begun to read meanwhile.
          if (next && !isRead()) main.replaceChildren(...next.childNodes);
        }
      } finally {
        busy = false;
      }
    };
    new EventSource("/live").onmessage = refresh;
  }
  // A second click on a button does nothing; the form's own number sees to it without this script.
  for (const form of document.querySelectorAll("form.act")) {
    form.addEventListener("submit", (event) => {
      if (form.dataset.sent) event.preventDefault();
      form.dataset.sent = "1";
    });
  }
  // Times as the reader's clock shows them, beside what is written.
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.title = at.toLocaleString();
  }
})();
