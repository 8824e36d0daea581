#include "chart.h"

namespace titan {

// Colours of curves keep a contrast of 3 : 1 on both grounds, and differ in lightness too.
const char* const kPageStyle = R"css(
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--text:#16191d;--soft:#5c6673;--edge:#e1e5ea;--grid:#e9ecf0;
--c0:#2563c9;--c1:#c2570c;--c2:#0f8a5f;--c3:#a3329a;--c4:#8a6d00;--c5:#c02a4a;--c6:#0c7f93;--c7:#5b5bd6;--good:#0a7550;
--warn:#b45309;--bad:#c02a4a}
@media(prefers-color-scheme:dark){:root{--bg:#0f1216;--card:#181c22;--text:#e8ebef;--soft:#98a3b1;--edge:#2a3038;
--grid:#242a31;--c0:#6ea8fe;--c1:#f59e5b;--c2:#4fd1a1;--c3:#e58ade;--c4:#e3c04d;--c5:#ff8095;--c6:#5cd0e3;--c7:#a5a5ff;
--good:#4fd1a1;--warn:#f5b041;--bad:#ff8095}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",
sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1280px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:24px;line-height:1.25;margin:0;overflow-wrap:anywhere;font-weight:650;letter-spacing:-.01em}
h2{font-size:16px;margin:32px 0 12px;font-weight:650}
header p{margin:4px 0 0;color:var(--soft);overflow-wrap:anywhere}
.top{display:flex;gap:12px;align-items:center;flex-wrap:wrap}
.badge{font-size:12px;font-weight:600;padding:2px 10px;border-radius:99px;border:1px solid currentColor;white-space:nowrap}
.going{color:var(--c0)}.done{color:var(--good)}.halt{color:var(--warn)}.broken{color:var(--bad)}.plain{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(142px,1fr));gap:12px;margin:20px 0 12px}
.tile,figure,.card{background:var(--card);border:1px solid var(--edge);border-radius:10px}
.tile{padding:10px 14px;min-width:0}
.tile span{display:block;color:var(--soft);font-size:12.5px}
.tile b{font-size:20px;font-weight:650;font-variant-numeric:tabular-nums;white-space:nowrap;letter-spacing:-.01em}
.tile small{color:var(--soft);font-size:12px;font-weight:400;letter-spacing:0;display:block;min-height:1.4em;line-height:1.4}
.bar{height:6px;border-radius:3px;background:var(--grid);overflow:hidden;margin:0 0 20px}
.bar i{display:block;height:100%;background:var(--c0);border-radius:3px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr));gap:14px}
.charts figure:first-child{grid-column:1/-1}
.charts figure:first-child .plot{height:300px}
@media(min-width:1208px){.charts figure:last-child:nth-child(3n+2){grid-column:1/-1}}
@media(min-width:814px) and (max-width:1207px){.charts figure:last-child:nth-child(2n){grid-column:1/-1}}
figure{margin:0;padding:12px 14px 10px;min-width:0}
figcaption{display:flex;flex-wrap:wrap;gap:0 8px;align-items:baseline;font-weight:600;font-size:14px;margin-bottom:8px}
figcaption small{color:var(--soft);font-weight:400}
figcaption b{margin-left:auto;font-weight:600;font-variant-numeric:tabular-nums;color:var(--soft)}
.plot{position:relative;height:176px;margin:0 6px 22px 52px;touch-action:pan-y}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
path{vector-effect:non-scaling-stroke;fill:none;stroke-linejoin:round;stroke-linecap:round}
.grid{stroke:var(--grid);stroke-width:1;stroke-linecap:butt}
.c0{--line:var(--c0)}.c1{--line:var(--c1)}.c2{--line:var(--c2)}.c3{--line:var(--c3)}
.c4{--line:var(--c4)}.c5{--line:var(--c5)}.c6{--line:var(--c6)}.c7{--line:var(--c7)}
.line,.faint,.dots{stroke:var(--line)}
.line{stroke-width:1.8}.faint{stroke-width:1;opacity:.32}.dots{stroke-width:7}.many{stroke-width:4}.band{fill:var(--line);opacity:.14}
.ys span,.xs span{position:absolute;font-size:11.5px;color:var(--soft);font-variant-numeric:tabular-nums;white-space:nowrap}
.ys span{right:calc(100% + 8px);transform:translateY(50%);line-height:1}
.xs span{top:calc(100% + 6px);transform:translateX(-50%);line-height:1}
.tip{position:absolute;top:4px;z-index:2;background:var(--card);border:1px solid var(--edge);border-radius:8px;
padding:5px 9px;font-size:12px;line-height:1.45;pointer-events:none;white-space:nowrap;box-shadow:0 4px 14px #0003;
font-variant-numeric:tabular-nums}
.tip div{overflow:hidden;text-overflow:ellipsis}
.rule{position:absolute;top:0;bottom:0;width:1px;background:var(--soft);opacity:.5;pointer-events:none}
.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;margin:14px 0 0;padding:0;list-style:none;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
td,th{padding:7px 14px;text-align:left;border-bottom:1px solid var(--edge);vertical-align:top;
font-variant-numeric:tabular-nums}
tr:last-child td{border-bottom:0}th{font-weight:600;white-space:nowrap}
td:first-child{color:var(--soft);white-space:nowrap}
td:first-child{width:1%}td+td{overflow-wrap:anywhere}
.scroll td+td{min-width:12em}.numbers{margin:20px 0}.numbers td+td{min-width:0;white-space:nowrap}
.scroll tr>:first-child{position:sticky;left:0;background:var(--card)}
pre{margin:0;padding:12px 14px;overflow-x:auto;font:12.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.wrap{white-space:pre-wrap;overflow-wrap:anywhere}
details summary{cursor:pointer;padding:10px 14px;font-weight:600;font-size:14px}
details[open] summary{border-bottom:1px solid var(--edge)}
footer{color:var(--soft);font-size:12.5px;margin-top:28px}
@media(max-width:560px){main{padding:18px 12px 36px}h1{font-size:20px}.tiles{grid-template-columns:1fr 1fr;gap:8px}
.charts figure:first-child .plot{height:220px}.plot{margin-left:46px}.tile b{font-size:18px}
td,th{padding:7px 10px}.scroll td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:38vw}}
)css";

// clang-format off
const char* const kPageScript = R"js(
const short=v=>{const s=Math.abs(v);if(!s)return"0";if(s>=1e9)return(v/1e9).toFixed(2)+"B";if(s>=1e6)
return(v/1e6).toFixed(2)+"M";if(s>=1e4)return(v/1e3).toFixed(2)+"k";return s<1e-3?v.toExponential(2):
String(+v.toPrecision(5))};
for(const plot of document.querySelectorAll(".plot")){
const about=JSON.parse(plot.querySelector("script").textContent),tip=plot.querySelector(".tip");
const rule=document.createElement("div");rule.className="rule";rule.hidden=true;plot.append(rule);
const hide=()=>{tip.hidden=rule.hidden=true};
plot.addEventListener("pointermove",event=>{
const box=plot.getBoundingClientRect(),share=(event.clientX-box.left)/box.width;
const step=about.a+share*(about.b-about.a),rows=[];let where=null;
const far=x=>Math.abs(x-step),found=about.d.filter(curve=>curve.x.length).map(curve=>
[curve,curve.x.reduce((best,x,i)=>far(x)<far(curve.x[best])?i:best,0)]);
for(const[curve,i]of found)if(where===null||far(curve.x[i])<far(where))where=curve.x[i];
for(const[curve,i]of found){if(Math.abs(curve.x[i]-where)>.02*(about.b-about.a))continue;
const row=document.createElement("div"),key=document.createElement("i");
key.className="key";key.style.background="var(--c"+curve.c+")";
row.append(key,short(curve.y[i])+about.u,curve.n?"  "+curve.n:"");rows.push(row)}
if(where===null)return hide();
tip.replaceChildren("step "+where.toLocaleString("en"),...rows);tip.hidden=rule.hidden=false;
const at=100*(where-about.a)/(about.b-about.a);rule.style.left=at+"%";
tip.style.maxWidth=Math.max(at,100-at)+"%";tip.style.left=at<50?"calc("+at+"% + 10px)":"auto";tip.style.right=at<50?"auto":"calc("+(100-at)+"% + 10px)"});
plot.addEventListener("pointerleave",hide)}
const details=document.querySelector("details"),open=location.pathname+" open";
if(details)try{details.open=sessionStorage[open]==1;details.ontoggle=()=>{sessionStorage[open]=+details.open}}catch{}
const written=document.querySelector("[data-written]");
if(written){const quiet=Date.now()/1e3-Number(written.dataset.written);
if(quiet>600)written.textContent="silent for "+(quiet>5400?Math.round(quiet/3600)+" h":Math.round(quiet/60)+" min")}
)js";
// clang-format on

}  // namespace titan
